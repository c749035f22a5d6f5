//! Attributes of QPs between C and the device.

use softhca::{Access, AddressVector, Errno, GlobalRoute, QpAttr, QpAttrMask, QpCaps, QpState};
use verbs_abi::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap};

use crate::object;

/// `cur_qp_state` and the states are checked only where the mask includes them.
pub(crate) fn attr_from_c(attr: &ibv_qp_attr, mask: QpAttrMask) -> Result<QpAttr, Errno> {
    Ok(QpAttr {
        state: state_if(mask.contains(QpAttrMask::STATE), attr.qp_state)?,
        current_state: state_if(mask.contains(QpAttrMask::CUR_STATE), attr.cur_qp_state)?,
        path_mtu: attr.path_mtu,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        remote_qpn: attr.dest_qp_num,
        access: access_if(mask.contains(QpAttrMask::ACCESS_FLAGS), attr.qp_access_flags)?,
        address: address_from_c(&attr.ah_attr),
        pkey_index: attr.pkey_index,
        port: attr.port_num,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: false,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        timeout: attr.timeout,
        retry_count: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        qkey: attr.qkey,
    })
}

fn state_if(counts: bool, state: u32) -> Result<QpState, Errno> {
    if counts { QpState::from_abi(state).ok_or(Errno::INVALID) } else { Ok(QpState::Reset) }
}

fn access_if(counts: bool, flags: u32) -> Result<Access, Errno> {
    if counts { Access::from_bits(flags).ok_or(Errno::INVALID) } else { Ok(Access::empty()) }
}

pub(crate) fn address_from_c(address: &ibv_ah_attr) -> AddressVector {
    let route = &address.grh;
    AddressVector {
        global: (address.is_global != 0).then_some(GlobalRoute {
            dgid: route.dgid.raw,
            flow_label: route.flow_label,
            sgid_index: route.sgid_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        }),
        dlid: address.dlid,
        sl: address.sl,
        src_path_bits: address.src_path_bits,
        static_rate: address.static_rate,
        port: address.port_num,
    }
}

fn address_to_c(address: &AddressVector) -> ibv_ah_attr {
    let route = address.global.unwrap_or_default();
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: route.dgid },
            flow_label: route.flow_label,
            sgid_index: route.sgid_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        },
        dlid: address.dlid,
        sl: address.sl,
        src_path_bits: address.src_path_bits,
        static_rate: address.static_rate,
        is_global: address.global.is_some().into(),
        port_num: address.port,
    }
}

pub(crate) fn caps_from_c(caps: &ibv_qp_cap) -> QpCaps {
    QpCaps {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline: caps.max_inline_data,
    }
}

pub(crate) fn caps_to_c(caps: &QpCaps) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline,
    }
}

pub(crate) fn attr_to_c(attr: &QpAttr, caps: &QpCaps) -> ibv_qp_attr {
    // SAFETY: zeroes are values of these fields; path migration "migrated" is 0.
    let mut c: ibv_qp_attr = unsafe { object::zeroed() };
    c.qp_state = attr.state as u32;
    c.cur_qp_state = attr.state as u32;
    c.path_mtu = attr.path_mtu;
    c.rq_psn = attr.rq_psn;
    c.sq_psn = attr.sq_psn;
    c.dest_qp_num = attr.remote_qpn;
    c.qkey = attr.qkey;
    c.qp_access_flags = attr.access.bits();
    c.cap = caps_to_c(caps);
    c.ah_attr = address_to_c(&attr.address);
    c.pkey_index = attr.pkey_index;
    c.en_sqd_async_notify = attr.en_sqd_async_notify.into();
    c.sq_draining = attr.sq_draining.into();
    c.max_rd_atomic = attr.max_rd_atomic;
    c.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    c.min_rnr_timer = attr.min_rnr_timer;
    c.port_num = attr.port;
    c.timeout = attr.timeout;
    c.retry_cnt = attr.retry_count;
    c.rnr_retry = attr.rnr_retry;
    c
}
