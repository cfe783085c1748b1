"""The audit of a run: checks everything that can be checked from its public records alone."""

from node.audit.auditor import audit_run
from node.audit.report import AuditFailed, Report

__all__ = ["AuditFailed", "Report", "audit_run"]
