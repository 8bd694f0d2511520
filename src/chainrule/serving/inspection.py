"""Endpoints of the page: what a model predicts, attends to and searches, under /api/inspect."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(prefix="/api/inspect", tags=["inspect"])
