"""What users apply and submit: read, checked, kept as given."""
