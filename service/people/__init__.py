"""People as a sign-in provider knows them (OpenID Connect): who they are, what their groups let them do, and for how
long it vouches for them. Without a provider nothing of this is used.
"""
