"""Executing an artifact: relation, plan, steps; the same code on every backend."""
