"""Data sets: handwritten digits, texts and images, from files, folders or the hub.

What belongs here: reading data and describing where it comes from. Not here: models.
"""
