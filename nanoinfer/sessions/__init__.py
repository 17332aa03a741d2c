"""The first engines of the series: every session owns its K/V."""

from nanoinfer.sessions.inference import InferenceEngine, InferenceSession, KVAccount, KVCache
from nanoinfer.sessions.offline_scheduler import OfflineScheduler

__all__ = ["InferenceEngine", "InferenceSession", "KVAccount", "KVCache", "OfflineScheduler"]
