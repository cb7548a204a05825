"""Admission webhooks: review a request, wait for the binder's answer if needed, undo on failure.

Owns the HTTP server and the reviews. Delegates judgement to `core.admission`; never writes GPUDevice placements.
"""
