"""What the REST servers, collector and serving layer, have in common.

Access keys and the check of each request, sessions of browsers, request bodies, responses, problem documents.
"""
