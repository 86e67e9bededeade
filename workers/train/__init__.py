"""The process of one attempt. Cancelled: it must stop. StaleAttempt: another attempt has taken over."""
