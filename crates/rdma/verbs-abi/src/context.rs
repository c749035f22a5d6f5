//! `ibv_context`, its table of functions, and `verbs_context`, which lies before it.

use std::ptr;

use libc::{c_int, c_uint, c_void, pthread_mutex_t};

use crate::{
    ibv_alloc_dm_attr, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device, ibv_device_attr,
    ibv_device_attr_ex, ibv_dm, ibv_mr, ibv_mw, ibv_mw_bind, ibv_parent_domain_init_attr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_query_device_ex_input, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_values_ex, ibv_wc,
    ibv_xrcd, ibv_xrcd_init_attr,
};

/// A function that this project does not provide, or one that programs never call.
pub type Absent = *mut c_void;

/// `ibv_context.abi_compat` of a context that lies in a [`verbs_context`].
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = ptr::without_provenance_mut(usize::MAX);

type QueryDevice = Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int>;
type QueryPort = Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int>;
type QueryPortSized = Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>;
type PollCq = Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>;
type ReqNotifyCq = Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>;
type PostSrqRecv =
    Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>;
type PostSend = Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>;
type PostRecv = Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>;
type AllocMw = Option<unsafe extern "C" fn(*mut ibv_pd, u32) -> *mut ibv_mw>;
type BindMw = Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>;
type DeallocMw = Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>;
type AdviseMr = Option<unsafe extern "C" fn(*mut ibv_pd, u32, u32, *mut ibv_sge, u32) -> c_int>;
type AllocNullMr = Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>;
type RegDmMr = Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>;
type AllocDm = Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>;
type FreeDm = Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>;
type AllocTd = Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>;
type DeallocTd = Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>;
type AllocParentDomain =
    Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>;
type OpenQp = Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>;
type OpenXrcd = Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>;
type CloseXrcd = Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>;
type QueryRtValues = Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>;
type CreateCqEx = Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>;
type CreateQpEx = Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>;
type CreateSrqEx = Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>;
type GetSrqNum = Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>;
type QueryDeviceEx = Option<
    unsafe extern "C" fn(
        *mut ibv_context,
        *const ibv_query_device_ex_input,
        *mut ibv_device_attr_ex,
        usize,
    ) -> c_int,
>;

c_structs! {
    struct ibv_context_ops {
        _compat_query_device: QueryDevice,
        _compat_query_port: QueryPort,
        _compat_alloc_pd: Absent,
        _compat_dealloc_pd: Absent,
        _compat_reg_mr: Absent,
        _compat_rereg_mr: Absent,
        _compat_dereg_mr: Absent,
        alloc_mw: AllocMw,
        bind_mw: BindMw,
        dealloc_mw: DeallocMw,
        _compat_create_cq: Absent,
        poll_cq: PollCq,
        req_notify_cq: ReqNotifyCq,
        _compat_cq_event: Absent,
        _compat_resize_cq: Absent,
        _compat_destroy_cq: Absent,
        _compat_create_srq: Absent,
        _compat_modify_srq: Absent,
        _compat_query_srq: Absent,
        _compat_destroy_srq: Absent,
        post_srq_recv: PostSrqRecv,
        _compat_create_qp: Absent,
        _compat_query_qp: Absent,
        _compat_modify_qp: Absent,
        _compat_destroy_qp: Absent,
        post_send: PostSend,
        post_recv: PostRecv,
        _compat_create_ah: Absent,
        _compat_destroy_ah: Absent,
        _compat_attach_mcast: Absent,
        _compat_detach_mcast: Absent,
        _compat_async_event: Absent,
    }

    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }

    struct verbs_context {
        query_port: QueryPortSized,
        advise_mr: AdviseMr,
        alloc_null_mr: AllocNullMr,
        read_counters: Absent,
        attach_counters_point_flow: Absent,
        create_counters: Absent,
        destroy_counters: Absent,
        reg_dm_mr: RegDmMr,
        alloc_dm: AllocDm,
        free_dm: FreeDm,
        modify_flow_action_esp: Absent,
        destroy_flow_action: Absent,
        create_flow_action_esp: Absent,
        modify_qp_rate_limit: Absent,
        alloc_parent_domain: AllocParentDomain,
        dealloc_td: DeallocTd,
        alloc_td: AllocTd,
        modify_cq: Absent,
        post_srq_ops: Absent,
        destroy_rwq_ind_table: Absent,
        create_rwq_ind_table: Absent,
        destroy_wq: Absent,
        modify_wq: Absent,
        create_wq: Absent,
        query_rt_values: QueryRtValues,
        create_cq_ex: CreateCqEx,
        r#priv: *mut c_void,
        query_device_ex: QueryDeviceEx,
        ibv_destroy_flow: Absent,
        ABI_placeholder2: Absent,
        ibv_create_flow: Absent,
        ABI_placeholder1: Absent,
        open_qp: OpenQp,
        create_qp_ex: CreateQpEx,
        get_srq_num: GetSrqNum,
        create_srq_ex: CreateSrqEx,
        open_xrcd: OpenXrcd,
        close_xrcd: CloseXrcd,
        _ABI_placeholder3: u64,
        /// Bytes of the table and the context together, as this library knows them.
        sz: usize,
        context: ibv_context,
    }
}
