//! Names of enumerators.

use std::ffi::{CStr, c_char};

const NODE_TYPES: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active deferred"];

const EVENT_TYPES: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const WC_STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"tag matching error",
    c"tag matching rendezvous incomplete",
];

const WR_OPCODES: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    c"unknown",
    c"unknown",
    c"flush",
    c"atomic-write",
];

fn name(of: &[&'static CStr], number: u32) -> *const c_char {
    of.get(number as usize).unwrap_or(&c"unknown").as_ptr()
}

pub(crate) extern "C" fn ibv_node_type_str(number: u32) -> *const c_char {
    name(&NODE_TYPES, number)
}

pub(crate) extern "C" fn ibv_port_state_str(number: u32) -> *const c_char {
    name(&PORT_STATES, number)
}

pub(crate) extern "C" fn ibv_event_type_str(number: u32) -> *const c_char {
    name(&EVENT_TYPES, number)
}

/// Since rdma-core 50; by mistake it is in the private node.
pub(crate) extern "C" fn ibv_wr_opcode_str(number: u32) -> *const c_char {
    name(&WR_OPCODES, number)
}

pub(crate) extern "C" fn ibv_wc_status_str(number: u32) -> *const c_char {
    name(&WC_STATUSES, number)
}
