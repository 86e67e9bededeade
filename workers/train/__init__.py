"""The process of one attempt. Everywhere Cancelled says that it was told to stop, StaleAttempt that another took over."""
