"""Dead letters of an operator: sources that are read, and the redrive of their records."""
