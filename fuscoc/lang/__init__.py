"""The language: ``.fsc`` text -> tree (``parser``) -> checked shuffles (``check``)."""
