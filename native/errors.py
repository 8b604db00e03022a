"""Errors of the Neuron Runtime binding, and the runtime's status codes."""

from enum import IntEnum


class Status(IntEnum):
    """`NRT_STATUS`. A runtime may return codes that are not listed here: `NrtError` carries those as plain integers."""

    NRT_SUCCESS = 0
    NRT_FAILURE = 1
    NRT_INVALID = 2
    NRT_INVALID_HANDLE = 3
    NRT_RESOURCE = 4
    NRT_TIMEOUT = 5
    NRT_HW_ERROR = 6
    NRT_QUEUE_FULL = 7
    NRT_LOAD_NOT_ENOUGH_NC = 9
    NRT_UNSUPPORTED_NEFF_VERSION = 10
    NRT_FAIL_HOST_MEM_ALLOC = 11
    NRT_UNINITIALIZED = 13
    NRT_CLOSED = 14
    NRT_QUEUE_EMPTY = 15
    NRT_EXEC_UNIT_UNRECOVERABLE = 101
    NRT_EXEC_BAD_INPUT = 1002
    NRT_EXEC_COMPLETED_WITH_NUM_ERR = 1003
    NRT_EXEC_COMPLETED_WITH_ERR = 1004
    NRT_EXEC_NC_BUSY = 1005
    NRT_EXEC_OOB = 1006
    NRT_COLL_PENDING = 1100
    NRT_EXEC_HW_ERR_COLLECTIVES = 1200
    NRT_EXEC_HW_ERR_HBM_UE = 1201
    NRT_EXEC_HW_ERR_NC_UE = 1202
    NRT_EXEC_HW_ERR_DMA_ABORT = 1203
    NRT_EXEC_SW_NQ_OVERFLOW = 1204
    NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE = 1205
    NRT_NETWORK_PROXY_FAILURE = 1206


def status_name(status: int) -> str:
    try:
        return Status(status).name
    except ValueError:
        return "NRT_UNKNOWN_STATUS"


class NrtError(RuntimeError):
    """A runtime call failed. `status` is the code, `what` says what was being done."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(status, what)
        self.status = int(status)
        self.what = what

    def __str__(self) -> str:
        return f"NRT Error {status_name(self.status)}({self.status}): {self.what}"


class RuntimeLibraryError(RuntimeError):
    """No usable Neuron Runtime library. The message is one line: what was tried, what was wrong, what cures it."""


class DeadHandleError(RuntimeError):
    """A tensor, tensor set, model or runtime was used after it was freed or closed."""
