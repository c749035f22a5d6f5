//! `ibv_qp_ex` and `ibv_cq_ex`: posting and polling through tables of functions.

use libc::{c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

use crate::{
    ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_pd, ibv_qp,
    ibv_qp_cap, ibv_sge, ibv_srq, ibv_srq_attr, ibv_xrcd,
};

type Post0 = Option<unsafe extern "C" fn(*mut ibv_qp_ex)>;
type PostU32 = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>;
type PostRemote = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>;
type PostRemoteU32 = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>;
type PostRemoteU64 = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>;
type PostCompareSwap = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>;
type BindMw = Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info)>;
type SendTso = Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>;
type SetUdAddr = Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>;
type SetInline = Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>;
type SetInlineList = Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>;
type SetSge = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>;
type SetSgeList = Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>;
type Complete = Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>;
type AtomicWrite = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>;
type StartPoll = Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>;
type ReadTm = Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut c_void)>;
type Read<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

c_structs! {
    struct ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: PostCompareSwap,
        wr_atomic_fetch_add: PostRemoteU64,
        wr_bind_mw: BindMw,
        wr_local_inv: PostU32,
        wr_rdma_read: PostRemote,
        wr_rdma_write: PostRemote,
        wr_rdma_write_imm: PostRemoteU32,
        wr_send: Post0,
        wr_send_imm: PostU32,
        wr_send_inv: PostU32,
        wr_send_tso: SendTso,
        wr_set_ud_addr: SetUdAddr,
        wr_set_xrc_srqn: PostU32,
        wr_set_inline_data: SetInline,
        wr_set_inline_data_list: SetInlineList,
        wr_set_sge: SetSge,
        wr_set_sge_list: SetSgeList,
        wr_start: Post0,
        wr_complete: Complete,
        wr_abort: Post0,
        wr_atomic_write: AtomicWrite,
    }

    struct ibv_poll_cq_attr {
        comp_mask: u32,
    }

    struct ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: u32,
        wr_id: u64,
        start_poll: StartPoll,
        next_poll: Read<c_int>,
        end_poll: Read<()>,
        read_opcode: Read<u32>,
        read_vendor_err: Read<u32>,
        read_byte_len: Read<u32>,
        read_imm_data: Read<u32>,
        read_qp_num: Read<u32>,
        read_src_qp: Read<u32>,
        read_wc_flags: Read<c_uint>,
        read_slid: Read<u32>,
        read_sl: Read<u8>,
        read_dlid_path_bits: Read<u8>,
        read_completion_ts: Read<u64>,
        read_cvlan: Read<u16>,
        read_flow_tag: Read<u32>,
        read_tm_info: ReadTm,
        read_completion_wallclock_ns: Read<u64>,
    }

    struct ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }

    struct ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }

    struct ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: u32,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut c_void,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }

    struct ibv_tm_cap {
        max_num_tags: u32,
        max_ops: u32,
    }

    struct ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }
}
