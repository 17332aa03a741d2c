"""Tests of the pictures: what they show, in which colours, and in which words."""
