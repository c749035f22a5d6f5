//! The structures of `rdma/rdma_cma.h` and `infiniband/sa.h`, and what programs pass with them.

use libc::{c_char, c_int, c_void, size_t, sockaddr, sockaddr_storage, socklen_t};

use crate::{ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_srq};

/// The union in `struct rdma_cm_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}

c_structs! {
    struct rdma_ib_addr {
        sgid: ibv_gid,
        dgid: ibv_gid,
        /// Network byte order.
        pkey: u16,
    }

    struct rdma_addr {
        src_storage: sockaddr_storage,
        dst_storage: sockaddr_storage,
        ibaddr: rdma_ib_addr,
    }

    struct ibv_sa_path_rec {
        dgid: ibv_gid,
        sgid: ibv_gid,
        /// Network byte order, as is `slid`.
        dlid: u16,
        slid: u16,
        raw_traffic: c_int,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        /// Network byte order.
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }

    struct rdma_route {
        addr: rdma_addr,
        path_rec: *mut ibv_sa_path_rec,
        num_paths: c_int,
    }

    struct rdma_event_channel {
        fd: c_int,
    }

    struct rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: u32,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: u32,
    }

    struct rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }

    struct rdma_ud_param {
        private_data: *const c_void,
        private_data_len: u8,
        ah_attr: ibv_ah_attr,
        qp_num: u32,
        qkey: u32,
    }

    struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: u32,
        status: c_int,
        param: rdma_cm_event_param,
    }

    struct rdma_addrinfo {
        ai_flags: c_int,
        ai_family: c_int,
        ai_qp_type: c_int,
        ai_port_space: c_int,
        ai_src_len: socklen_t,
        ai_dst_len: socklen_t,
        ai_src_addr: *mut sockaddr,
        ai_dst_addr: *mut sockaddr,
        ai_src_canonname: *mut c_char,
        ai_dst_canonname: *mut c_char,
        ai_route_len: size_t,
        ai_route: *mut c_void,
        ai_connect_len: size_t,
        ai_connect: *mut c_void,
        ai_next: *mut rdma_addrinfo,
    }

    struct rdma_cm_join_mc_attr_ex {
        comp_mask: u32,
        join_flags: u32,
        addr: *mut sockaddr,
    }
}

/// `enum rdma_cm_event_type`.
pub mod cm_event {
    pub const RDMA_CM_EVENT_ADDR_RESOLVED: u32 = 0;
    pub const RDMA_CM_EVENT_ADDR_ERROR: u32 = 1;
    pub const RDMA_CM_EVENT_ROUTE_RESOLVED: u32 = 2;
    pub const RDMA_CM_EVENT_CONNECT_REQUEST: u32 = 4;
    pub const RDMA_CM_EVENT_CONNECT_RESPONSE: u32 = 5;
    pub const RDMA_CM_EVENT_CONNECT_ERROR: u32 = 6;
    pub const RDMA_CM_EVENT_UNREACHABLE: u32 = 7;
    pub const RDMA_CM_EVENT_REJECTED: u32 = 8;
    pub const RDMA_CM_EVENT_ESTABLISHED: u32 = 9;
    pub const RDMA_CM_EVENT_DISCONNECTED: u32 = 10;
    pub const RDMA_CM_EVENT_MULTICAST_JOIN: u32 = 12;
    pub const RDMA_CM_EVENT_MULTICAST_ERROR: u32 = 13;
    pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: u32 = 15;
}

/// `enum rdma_port_space`.
pub mod port_space {
    pub const RDMA_PS_IPOIB: u32 = 0x0002;
    pub const RDMA_PS_TCP: u32 = 0x0106;
    pub const RDMA_PS_UDP: u32 = 0x0111;
    pub const RDMA_PS_IB: u32 = 0x013f;
}

/// The key of datagram queue pairs that a connection manager makes.
pub const RDMA_UDP_QKEY: u32 = 0x0123_4567;

/// `responder_resources` or `initiator_depth`: as many as the device has.
pub const RDMA_MAX_RESOURCES: u8 = 0xff;

/// `rdma_addrinfo.ai_flags`.
pub mod rai {
    pub const RAI_PASSIVE: i32 = 1;
    pub const RAI_NUMERICHOST: i32 = 2;
    pub const RAI_NOROUTE: i32 = 4;
    pub const RAI_FAMILY: i32 = 8;
}
