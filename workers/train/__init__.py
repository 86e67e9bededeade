"""The process of one attempt. Cancelled says that it was told to stop, StaleAttempt that another has taken over."""
