"""Pods from the kubelet's or the queue's word to a program in its grant."""
