"""Input and output of the scheduler: objects, amounts, matching rules, decisions, reasons."""
