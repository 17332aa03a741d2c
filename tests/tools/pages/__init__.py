"""Tests of the pages with sliders and of the trace player, most of them in headless Chromium."""
