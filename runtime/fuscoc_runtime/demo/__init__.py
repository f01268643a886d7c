"""A verified run of any artifact on data that is made up from its manifest."""
