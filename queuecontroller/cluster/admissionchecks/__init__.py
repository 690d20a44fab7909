"""AdmissionChecks of this controller: provisioning requests, and placement beside Kueue."""
