"""Placement of pods that request GPUs, through the scheduler extender: filter, preempt, bind."""
