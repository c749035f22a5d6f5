//! Enumerators of `verbs.h`.

/// `enum ibv_node_type`.
pub const IBV_NODE_CA: i32 = 1;
/// `enum ibv_transport_type`.
pub const IBV_TRANSPORT_IB: i32 = 0;
/// `ibv_port_attr.link_layer`.
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
/// `enum ibv_gid_type`.
pub const IBV_GID_TYPE_IB: u32 = 0;
/// `enum ibv_atomic_cap`: atomic against every other access of this device.
pub const IBV_ATOMIC_HCA: u32 = 1;

/// `enum ibv_port_state`.
pub mod port_state {
    pub const IBV_PORT_DOWN: u32 = 1;
    pub const IBV_PORT_ACTIVE: u32 = 4;
}

/// `enum ibv_mtu`.
pub const IBV_MTU_4096: u32 = 5;

/// `enum ibv_device_cap_flags`.
pub mod device_cap {
    pub const IBV_DEVICE_CURR_QP_STATE_MOD: u32 = 1 << 7;
    pub const IBV_DEVICE_PORT_ACTIVE_EVENT: u32 = 1 << 10;
    pub const IBV_DEVICE_SYS_IMAGE_GUID: u32 = 1 << 11;
    pub const IBV_DEVICE_RC_RNR_NAK_GEN: u32 = 1 << 12;
    pub const IBV_DEVICE_N_NOTIFY_CQ: u32 = 1 << 14;
    pub const IBV_DEVICE_MEM_WINDOW: u32 = 1 << 17;
    pub const IBV_DEVICE_XRC: u32 = 1 << 20;
    pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
}

/// `enum ibv_event_type`.
pub mod event {
    pub const IBV_EVENT_CQ_ERR: u32 = 0;
    pub const IBV_EVENT_QP_FATAL: u32 = 1;
    pub const IBV_EVENT_QP_REQ_ERR: u32 = 2;
    pub const IBV_EVENT_QP_ACCESS_ERR: u32 = 3;
    pub const IBV_EVENT_COMM_EST: u32 = 4;
    pub const IBV_EVENT_SQ_DRAINED: u32 = 5;
    pub const IBV_EVENT_DEVICE_FATAL: u32 = 8;
    pub const IBV_EVENT_SRQ_ERR: u32 = 14;
    pub const IBV_EVENT_SRQ_LIMIT_REACHED: u32 = 15;
    pub const IBV_EVENT_QP_LAST_WQE_REACHED: u32 = 16;
}

/// `enum ibv_qp_type`.
pub mod qp_type {
    pub const IBV_QPT_RC: u32 = 2;
    pub const IBV_QPT_UC: u32 = 3;
    pub const IBV_QPT_UD: u32 = 4;
    pub const IBV_QPT_XRC_SEND: u32 = 9;
    pub const IBV_QPT_XRC_RECV: u32 = 10;
}

/// `enum ibv_wr_opcode`.
pub mod wr_opcode {
    pub const IBV_WR_RDMA_WRITE: u32 = 0;
    pub const IBV_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const IBV_WR_SEND: u32 = 2;
    pub const IBV_WR_SEND_WITH_IMM: u32 = 3;
    pub const IBV_WR_RDMA_READ: u32 = 4;
    pub const IBV_WR_ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const IBV_WR_ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const IBV_WR_LOCAL_INV: u32 = 7;
    pub const IBV_WR_BIND_MW: u32 = 8;
    pub const IBV_WR_SEND_WITH_INV: u32 = 9;
}

/// `enum ibv_send_flags`.
pub mod send_flags {
    pub const IBV_SEND_FENCE: u32 = 1 << 0;
    pub const IBV_SEND_SIGNALED: u32 = 1 << 1;
    pub const IBV_SEND_SOLICITED: u32 = 1 << 2;
    pub const IBV_SEND_INLINE: u32 = 1 << 3;
}

/// `enum ibv_wc_flags`.
pub mod wc_flags {
    pub const IBV_WC_GRH: u32 = 1 << 0;
    pub const IBV_WC_WITH_IMM: u32 = 1 << 1;
    pub const IBV_WC_WITH_INV: u32 = 1 << 3;
}

/// `enum ibv_create_cq_wc_flags`: the fields that every CQ of this device can report.
pub const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;
/// The time of the completion, by the device's clock and by that on the wall.
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;

/// `enum ibv_values_mask`.
pub const IBV_VALUES_MASK_RAW_CLOCK: u32 = 1;

/// `enum ibv_rereg_mr_flags`.
pub mod rereg_mr {
    pub const IBV_REREG_MR_CHANGE_TRANSLATION: i32 = 1 << 0;
    pub const IBV_REREG_MR_CHANGE_PD: i32 = 1 << 1;
    pub const IBV_REREG_MR_CHANGE_ACCESS: i32 = 1 << 2;
}

/// `enum ibv_advise_mr_advice` and `enum ibv_advise_mr_flags`.
pub mod advise_mr {
    pub const IBV_ADVISE_MR_ADVICE_PREFETCH: u32 = 0;
    pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: u32 = 1;
    pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: u32 = 2;
    pub const IBV_ADVISE_MR_FLAG_FLUSH: u32 = 1;
}

/// `enum ibv_parent_domain_init_attr_mask`.
pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;

/// `enum ibv_qp_init_attr_mask`.
pub mod qp_init_attr {
    pub const IBV_QP_INIT_ATTR_PD: u32 = 1 << 0;
    pub const IBV_QP_INIT_ATTR_XRCD: u32 = 1 << 1;
    pub const IBV_QP_INIT_ATTR_CREATE_FLAGS: u32 = 1 << 2;
    pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// `enum ibv_qp_create_send_ops_flags`: the ten operations of an RC QP, and of an XRC initiator.
pub const IBV_QP_EX_RC_OPERATIONS: u64 = 0x3ff;
/// Those of a UC QP: SENDs and WRITEs, and what concerns memory windows here.
pub const IBV_QP_EX_UC_OPERATIONS: u64 = 0x18f;

/// The two of a UD QP: SENDs.
pub const IBV_QP_EX_UD_OPERATIONS: u64 = 0x0c;

/// `enum ibv_mw_type`.
pub mod mw_type {
    pub const IBV_MW_TYPE_1: u32 = 1;
    pub const IBV_MW_TYPE_2: u32 = 2;
}

/// `enum ibv_qp_open_attr_mask`.
pub mod qp_open_attr {
    pub const IBV_QP_OPEN_ATTR_NUM: u32 = 1 << 0;
    pub const IBV_QP_OPEN_ATTR_XRCD: u32 = 1 << 1;
    pub const IBV_QP_OPEN_ATTR_CONTEXT: u32 = 1 << 2;
    pub const IBV_QP_OPEN_ATTR_TYPE: u32 = 1 << 3;
}

/// `enum ibv_xrcd_init_attr_mask`.
pub mod xrcd_init_attr {
    pub const IBV_XRCD_INIT_ATTR_FD: u32 = 1 << 0;
    pub const IBV_XRCD_INIT_ATTR_OFLAGS: u32 = 1 << 1;
}

/// `enum ibv_srq_type`.
pub mod srq_type {
    pub const IBV_SRQT_BASIC: u32 = 0;
    pub const IBV_SRQT_XRC: u32 = 1;
}

/// `enum ibv_srq_init_attr_mask`.
pub mod srq_init_attr {
    pub const IBV_SRQ_INIT_ATTR_TYPE: u32 = 1 << 0;
    pub const IBV_SRQ_INIT_ATTR_PD: u32 = 1 << 1;
    pub const IBV_SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
    pub const IBV_SRQ_INIT_ATTR_CQ: u32 = 1 << 3;
}

/// `enum ibv_access_flags`.
pub mod access {
    pub const IBV_ACCESS_LOCAL_WRITE: u32 = 1;
    pub const IBV_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
    pub const IBV_ACCESS_REMOTE_READ: u32 = 1 << 2;
    pub const IBV_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
    /// Hints that a device may leave aside, such as relaxed ordering.
    pub const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;
}

/// `enum ibv_fork_status`.
pub const IBV_FORK_UNNEEDED: u32 = 2;
