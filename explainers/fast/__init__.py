"""What exists for speed alone; each part has a plain twin that is its oracle, and FAITHCHECK_PLAIN=1 runs without all.

What belongs here: code whose removal changes how long a run takes and nothing else. Not here: anything that decides a
result. A part that cannot handle a model or a case says nothing and leaves it to its plain twin.
"""
