"""The admission webhooks: review one request, wait for the binder's answer where there is one, undo on failure.

Owns the HTTP server and the reviews. Judges with `core.admission`; never writes GPUDevice placements itself.
"""
