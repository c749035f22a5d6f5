//! Allowed state transitions of `modify_qp`, from the InfiniBand specification's tables.

use crate::attr::{Access, QpAttr, QpAttrMask, QpKind, QpState};
use crate::errno::Errno;
use crate::limits::Limits;

/// The attributes that a transition requires and allows beside the state.
#[derive(Clone, Copy)]
struct Rule {
    required: QpAttrMask,
    optional: QpAttrMask,
}

const NONE: QpAttrMask = QpAttrMask::empty();
const IDENTITY: QpAttrMask = QpAttrMask::PKEY_INDEX.union(QpAttrMask::PORT).union(QpAttrMask::ACCESS_FLAGS);
const RECEIVE: QpAttrMask =
    QpAttrMask::AV.union(QpAttrMask::PATH_MTU).union(QpAttrMask::DEST_QPN).union(QpAttrMask::RQ_PSN);

/// Attributes of reliable connections only.
const RELIABLE: QpAttrMask = QpAttrMask::MAX_DEST_RD_ATOMIC
    .union(QpAttrMask::MIN_RNR_TIMER)
    .union(QpAttrMask::TIMEOUT)
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC);
const RECEIVE_RELIABLY: QpAttrMask =
    RECEIVE.union(QpAttrMask::MAX_DEST_RD_ATOMIC).union(QpAttrMask::MIN_RNR_TIMER);
const SEND_RELIABLY: QpAttrMask = QpAttrMask::TIMEOUT
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::SQ_PSN)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC);
const RUNNING: QpAttrMask = QpAttrMask::CUR_STATE
    .union(QpAttrMask::ACCESS_FLAGS)
    .union(QpAttrMask::MIN_RNR_TIMER)
    .union(QpAttrMask::PATH_MIG_STATE);
const DRAINED: QpAttrMask = QpAttrMask::PORT
    .union(QpAttrMask::AV)
    .union(QpAttrMask::TIMEOUT)
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC)
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
    .union(QpAttrMask::PKEY_INDEX)
    .union(QpAttrMask::ACCESS_FLAGS)
    .union(QpAttrMask::MIN_RNR_TIMER)
    .union(QpAttrMask::PATH_MIG_STATE);

/// Attributes that queue pairs of this kind do not have.
fn unneeded(kind: QpKind) -> QpAttrMask {
    match kind {
        QpKind::Rc => NONE,
        QpKind::Uc | QpKind::Ud => RELIABLE,
        QpKind::XrcSend => QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
        QpKind::XrcRecv => QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC,
    }
}

/// Attributes that are passed over where they are given. Programs treat both ends of an extended reliable connection
/// like the ends of a reliable one, and the kernel lets them.
pub(crate) fn ignored(kind: QpKind) -> QpAttrMask {
    match kind {
        QpKind::XrcSend | QpKind::XrcRecv => unneeded(kind),
        _ => NONE,
    }
}

fn rule(kind: QpKind, from: QpState, to: QpState) -> Option<Rule> {
    match kind {
        QpKind::Ud => datagram_rule(from, to),
        _ => connection_rule(kind, from, to),
    }
}

fn connection_rule(kind: QpKind, from: QpState, to: QpState) -> Option<Rule> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let (required, optional) = match (from, to) {
        (Reset, Init) => (IDENTITY, NONE),
        (Init, Init) => (NONE, IDENTITY),
        (Init, Rtr) => (RECEIVE_RELIABLY, QpAttrMask::ACCESS_FLAGS.union(QpAttrMask::PKEY_INDEX)),
        (Rtr, Rts) => (SEND_RELIABLY, RUNNING),
        (Sqe, Rts) if kind == QpKind::Uc => (NONE, QpAttrMask::CUR_STATE.union(QpAttrMask::ACCESS_FLAGS)),
        (Sqe, Error) if kind == QpKind::Uc => (NONE, NONE),
        (Rts, Rts) | (Sqd, Rts) => (NONE, RUNNING),
        (Rts, Sqd) => (NONE, QpAttrMask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) if kind == QpKind::Uc => (NONE, DRAINED - QpAttrMask::PORT),
        (Sqd, Sqd) => (NONE, DRAINED),
        (_, Reset) | (Init | Rtr | Rts | Sqd | Error, Error) => (NONE, NONE),
        _ => return None,
    };
    let unneeded = unneeded(kind);
    Some(Rule { required: required - unneeded, optional: optional - unneeded })
}

fn datagram_rule(from: QpState, to: QpState) -> Option<Rule> {
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    const IDENTITY: QpAttrMask = QpAttrMask::PKEY_INDEX.union(QpAttrMask::PORT).union(QpAttrMask::QKEY);
    const RECEIVE: QpAttrMask = QpAttrMask::PKEY_INDEX.union(QpAttrMask::QKEY);
    const RUNNING: QpAttrMask = QpAttrMask::CUR_STATE.union(QpAttrMask::QKEY);
    let (required, optional) = match (from, to) {
        (Reset, Init) => (IDENTITY, NONE),
        (Init, Init) => (NONE, IDENTITY),
        (Init, Rtr) => (NONE, RECEIVE),
        (Rtr, Rts) => (QpAttrMask::SQ_PSN, RUNNING),
        (Rts | Sqd | Sqe, Rts) => (NONE, RUNNING),
        (Rts, Sqd) => (NONE, QpAttrMask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (NONE, RECEIVE),
        (_, Reset) | (Init | Rtr | Rts | Sqd | Sqe | Error, Error) => (NONE, NONE),
        _ => return None,
    };
    Some(Rule { required, optional })
}

/// The state after `attr` under `mask` in the state `from`.
///
/// # Errors
/// `INVALID` if the table, a value or a limit forbids it; `UNSUPPORTED` for alternate paths and rate limits.
pub(crate) fn check(
    kind: QpKind,
    from: QpState,
    attr: &QpAttr,
    mask: QpAttrMask,
    limits: &Limits,
) -> Result<QpState, Errno> {
    if mask.intersects(QpAttrMask::ALT_PATH | QpAttrMask::RATE_LIMIT) {
        return Err(Errno::UNSUPPORTED);
    }
    if mask.contains(QpAttrMask::CUR_STATE) && attr.current_state != from {
        return Err(Errno::INVALID);
    }
    let to = if mask.contains(QpAttrMask::STATE) { attr.state } else { from };
    let rule = rule(kind, from, to).ok_or(Errno::INVALID)?;
    let given = mask - QpAttrMask::STATE;
    let allowed = rule.required | rule.optional;
    if !given.contains(rule.required) || !allowed.contains(given) || !values_fit(attr, given, limits) {
        return Err(Errno::INVALID);
    }
    Ok(to)
}

/// The access rights that a queue pair can grant to its peer.
const PEER_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

fn values_fit(attr: &QpAttr, mask: QpAttrMask, limits: &Limits) -> bool {
    let fits = |bit: QpAttrMask, good: bool| !mask.contains(bit) || good;
    fits(QpAttrMask::PKEY_INDEX, attr.pkey_index == 0)
        && fits(QpAttrMask::PORT, attr.port == 1)
        && fits(QpAttrMask::ACCESS_FLAGS, PEER_ACCESS.contains(attr.access - Access::RELAXED_ORDERING))
        && fits(QpAttrMask::AV, attr.address.has_known_source() && attr.address.port == 1)
        && fits(QpAttrMask::PATH_MTU, (1..=5).contains(&attr.path_mtu))
        && fits(QpAttrMask::DEST_QPN, attr.remote_qpn < 1 << 24)
        && fits(QpAttrMask::TIMEOUT, attr.timeout < 32)
        && fits(QpAttrMask::RETRY_CNT, attr.retry_count < 8)
        && fits(QpAttrMask::RNR_RETRY, attr.rnr_retry < 8)
        && fits(QpAttrMask::MIN_RNR_TIMER, attr.min_rnr_timer < 32)
        && fits(QpAttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= limits.max_rd_atomic)
        && fits(QpAttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= limits.max_rd_atomic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::{AddressVector, GlobalRoute};
    use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};

    const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];

    fn good() -> QpAttr {
        let address = AddressVector { port: 1, ..AddressVector::default() };
        QpAttr { port: 1, path_mtu: 3, address, ..QpAttr::default() }
    }

    const KINDS: [QpKind; 5] = [QpKind::Rc, QpKind::Uc, QpKind::Ud, QpKind::XrcSend, QpKind::XrcRecv];

    fn attempt(kind: QpKind, from: QpState, to: QpState, mask: QpAttrMask) -> bool {
        let attr = QpAttr { state: to, current_state: from, ..good() };
        check(kind, from, &attr, mask | QpAttrMask::STATE, &Limits::default()).is_ok()
    }

    #[test]
    fn only_the_tables_transitions_exist() {
        let legal: Vec<(QpState, QpState)> = vec![
            (Reset, Reset),
            (Reset, Init),
            (Init, Reset),
            (Init, Init),
            (Init, Rtr),
            (Init, Error),
            (Rtr, Reset),
            (Rtr, Rts),
            (Rtr, Error),
            (Rts, Reset),
            (Rts, Rts),
            (Rts, Sqd),
            (Rts, Error),
            (Sqd, Reset),
            (Sqd, Rts),
            (Sqd, Sqd),
            (Sqd, Error),
            (Sqe, Reset),
            (Error, Reset),
            (Error, Error),
        ];
        let from_failed_sends = [(Sqe, Rts), (Sqe, Error)];
        for kind in KINDS {
            for (from, to) in STATES.iter().flat_map(|from| STATES.map(|to| (*from, to))) {
                let required = rule(kind, from, to).map_or(NONE, |rule| rule.required);
                let is_legal = legal.contains(&(from, to))
                    || !kind.is_reliable() && from_failed_sends.contains(&(from, to));
                assert_eq!(attempt(kind, from, to, required), is_legal, "{kind:?} {from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn each_required_attribute_is_required_and_no_other_is_allowed() {
        let forward = [(Reset, Init), (Init, Rtr), (Rtr, Rts)];
        for (kind, (from, to)) in KINDS.iter().flat_map(|kind| forward.map(|way| (*kind, way))) {
            let Rule { required, optional } = rule(kind, from, to).unwrap();
            for bit in QpAttrMask::all() - QpAttrMask::STATE - QpAttrMask::CUR_STATE {
                let (mask, good) = match required.contains(bit) {
                    true => (required - bit, false),
                    false => (required | bit, optional.contains(bit)),
                };
                assert_eq!(attempt(kind, from, to, mask), good, "{kind:?} {from:?} {bit:?}");
            }
        }
    }

    #[test]
    fn an_unreliable_connection_needs_no_timers() {
        let rtr = QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
        assert!(attempt(QpKind::Uc, Init, Rtr, rtr) && !attempt(QpKind::Rc, Init, Rtr, rtr));
        assert!(attempt(QpKind::Uc, Rtr, Rts, QpAttrMask::SQ_PSN));
    }

    #[test]
    fn a_drained_queue_pair_accepts_only_the_attributes_of_its_state() {
        let drained = |kind, bit| attempt(kind, Sqd, Sqd, bit);
        for kind in KINDS {
            assert!(drained(kind, QpAttrMask::PKEY_INDEX), "{kind:?}");
            assert!(
                !drained(kind, QpAttrMask::DEST_QPN) && !drained(kind, QpAttrMask::CUR_STATE),
                "{kind:?}"
            );
        }
        assert!(drained(QpKind::Rc, QpAttrMask::PORT) && !drained(QpKind::Uc, QpAttrMask::PORT));
        assert!(drained(QpKind::Rc, QpAttrMask::MIN_RNR_TIMER) && drained(QpKind::Ud, QpAttrMask::QKEY));
    }

    #[test]
    fn values_are_checked() {
        let attempt = |attr: QpAttr, mask| check(QpKind::Rc, Sqd, &attr, mask, &Limits::default()).is_ok();
        assert!(attempt(good(), QpAttrMask::TIMEOUT));
        assert!(!attempt(QpAttr { timeout: 32, ..good() }, QpAttrMask::TIMEOUT));
        assert!(!attempt(QpAttr { max_rd_atomic: 17, ..good() }, QpAttrMask::MAX_QP_RD_ATOMIC));
        assert!(!attempt(QpAttr { current_state: Rts, ..good() }, QpAttrMask::CUR_STATE));
        let reached_by = |sgid_index, port| {
            let global = Some(GlobalRoute { sgid_index, ..GlobalRoute::default() });
            let attr = QpAttr { address: AddressVector { global, port, ..good().address }, ..good() };
            values_fit(&attr, QpAttrMask::AV, &Limits::default())
        };
        assert!(reached_by(0, 1) && !reached_by(1, 1));
        assert!(!reached_by(0, 0) && !reached_by(0, 2));
    }
}
