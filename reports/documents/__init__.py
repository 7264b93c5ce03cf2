"""The documents: one typed model of each kind, which checks what is read and is what tables and pages are made from.

What belongs here: the fields of a document, and what follows from them without words. Not here: sentences and pages.
"""
