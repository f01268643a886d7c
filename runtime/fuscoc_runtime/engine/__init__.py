"""Executing an artifact on a rank: the general engine, whose hosts plan and go through steps.

``node`` has the calls whose kernels plan by themselves.
"""
