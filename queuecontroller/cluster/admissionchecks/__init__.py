"""AdmissionChecks that are answered here."""
