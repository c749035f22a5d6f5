use moves::placement::Placement;
use planner::{Amounts, Host, Instance, Need, Score};

use super::*;

fn vid(lid: u16) -> Vid {
    Vid::new(lid).unwrap()
}

fn host(number: usize) -> HostName {
    HostName::new(&format!("h{number}")).unwrap()
}

fn step(lid: u16, from: usize, to: usize) -> Step {
    Step {
        vid: vid(lid),
        from: host(from),
        to: host(to),
        copied: 0,
        after: Score::default(),
        is_detour: false,
    }
}

/// The next moves with instances of 4 GiB on these hosts, which have 16 GiB.
fn next(waves: &[Vec<Step>], on: &[(u16, usize)]) -> Result<Vec<(u16, usize)>, Blocked> {
    let (hosts, placement): (Vec<_>, _) = ((0..4).map(host).collect(), Placement::default());
    let up = Host { is_up: true, runs_instances: true, ..Host::default() };
    let instance = |(lid, on): &(u16, usize)| {
        (vid(*lid), Instance { name: "job", host: &hosts[*on], moves_to: None, placement: &placement })
    };
    let view = View {
        hosts: hosts.iter().take(3).map(|host| (host.clone(), up)).collect(),
        instances: on.iter().map(instance).collect(),
        ..View::default()
    };
    let need = Need { amounts: Amounts { cpu: 0, memory: 4 << 30 }, ..Need::default() };
    let loads = Loads {
        rooms: hosts.iter().map(|host| (host.clone(), Amounts { cpu: 4000, memory: 16 << 30 })).collect(),
        needs: on.iter().map(|(lid, _)| (vid(*lid), need.clone())).collect(),
        talks: Vec::new(),
    };
    let steps = next_wave(waves, &view, &loads)?;
    Ok(steps.iter().map(|step| (step.vid.lid(), step.to.as_str()[1..].parse().unwrap())).collect())
}

#[test]
fn the_places_tell_which_moves_are_done() {
    let waves = [vec![step(1, 0, 2), step(2, 0, 1)], vec![step(1, 2, 1)]];
    assert_eq!(next(&waves, &[(1, 0), (2, 0)]), Ok(vec![(1, 2), (2, 1)]));
    assert_eq!(next(&waves, &[(1, 2), (2, 0)]), Ok(vec![(2, 1)]), "one of the wave is done");
    assert_eq!(next(&waves, &[(1, 2), (2, 1)]), Ok(vec![(1, 1)]), "it goes on from its detour");
    assert_eq!(next(&waves, &[(1, 1), (2, 1)]), Ok(vec![]));
    assert_eq!(next(&waves, &[(2, 0)]), Ok(vec![(2, 1)]), "an instance has ended");
}

#[test]
fn a_move_that_the_present_forbids_is_named() {
    let why = |waves: &[Vec<Step>], on: &[_]| next(waves, on).unwrap_err().why;
    assert_eq!(why(&[vec![step(1, 0, 2)]], &[(1, 1)]), "it is not on h0 any more");
    assert_eq!(why(&[vec![step(1, 0, 3)]], &[(1, 0)]), "h3 takes no instances now");
    let full = [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1)];
    assert_eq!(next(&[vec![step(1, 0, 1)]], &full), Ok(vec![(1, 1)]));
    let both = vec![step(1, 0, 1), step(2, 0, 1)];
    assert_eq!(why(&[both], &full), "h1 has no room for it any more");
}
