"""Is the evidence faithful? Interventions turned into sufficiency, necessity and recoverability."""
