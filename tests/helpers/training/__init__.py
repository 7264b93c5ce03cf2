"""Training of the models that the project ships or measures: the sentiment BERT and small decoders."""
