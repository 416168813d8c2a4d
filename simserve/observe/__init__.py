"""Measuring a live OpenAI-compatible server: what it is, and how fast it answers at a few loads.

Knows HTTP and the definitions of ``vllm bench serve``; neither a scenario nor the simulator. Needs the extra
``observe``.
"""
