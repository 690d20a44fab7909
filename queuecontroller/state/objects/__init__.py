"""Objects that users apply and submit: parsed, validated, stored as given."""
