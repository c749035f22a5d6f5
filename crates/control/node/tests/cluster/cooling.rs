//! Cool-down after a move.

use api::{DrainRequest, MoveGroupRequest, PlannedMove};

use super::*;

const HOUR_S: u64 = 3600;

impl Cluster {
    /// Starts an instance of the group `g` that cools down for so long.
    fn run_cooling(&self, name: &str, cool_down_s: Option<u64>) {
        let request = RunRequest { group: Some("g".into()), cool_down_s, ..run_request(name, "h1") };
        assert!(matches!(self.ask(&Request::Run(request.into())), Event::Started(_)));
    }

    /// How a move of the group ends, or what it would do.
    fn move_group(&self, host: &str, dry_run: bool, force: bool) -> Event {
        let hosts = vec![host.into()];
        self.ask(&Request::MoveGroup(MoveGroupRequest { group: "g".into(), hosts, dry_run, force }))
    }

    fn drain(&self, dry_run: bool) -> Event {
        let request = DrainRequest { host: "h1".into(), to: Vec::new(), parallel: 1, dry_run };
        self.ask(&Request::Drain(request))
    }

    fn host_of(&self, name: &str) -> String {
        self.instance(name).host
    }
}

fn cools_down(name: &str, failure: &Failure) -> bool {
    failure.message.starts_with(&format!("`{name}` has moved recently and cools down for another"))
        && failure.remedy.contains("--force")
}

fn is_refused(event: &Event) -> bool {
    matches!(event, Event::Failed(failure) if cools_down("a", failure))
}

fn plan(event: Event) -> Vec<PlannedMove> {
    match event {
        Event::Plan(plan) => plan,
        other => panic!("no plan: {other:?}"),
    }
}

#[test]
fn a_cooling_instance_refuses_an_ordinary_move() {
    let mut cluster = Cluster::start();
    cluster.run_cooling("a", Some(HOUR_S));
    cluster.run_cooling("b", None);
    assert_eq!(cluster.instance("a").cools_down_for_s, None);
    for (name, host) in [("a", "h2"), ("b", "h2"), ("b", "h3")] {
        cluster.move_to(name, host);
    }
    assert!(is_refused(&cluster.request_move("a", "h3", false)));
    let Event::Checked { obstacles } = cluster.request_move("a", "h3", true) else { panic!("not checked") };
    assert!(obstacles.len() == 1 && cools_down("a", &obstacles[0]), "{obstacles:?}");
    let there = cluster.request_move("a", "h2", false);
    assert!(matches!(&there, Event::Failed(why) if why.message.contains("already")), "{there:?}");

    cluster.cool_down = Duration::from_secs(HOUR_S);
    cluster.replace_coordinator();
    assert!(is_refused(&cluster.request_move("a", "h3", false)));
    for name in ["a", "b"] {
        let left = cluster.instance(name).cools_down_for_s.unwrap();
        assert!((HOUR_S - 600..=HOUR_S).contains(&left), "{name}: {left}");
    }
    let force = MoveRequest {
        name: "a".into(),
        host: "h3".into(),
        dry_run: false,
        force: true,
        post_copy: false,
        within_s: None,
    };
    assert!(matches!(cluster.ask(&Request::Move(force)), Event::Moved(_)));
    assert_eq!(cluster.host_of("a"), "h3");
}

#[test]
fn a_cooling_instance_blocks_group_moves_but_not_drains() {
    let cluster = Cluster::start();
    cluster.run_cooling("a", Some(HOUR_S));
    cluster.run_cooling("b", Some(0));
    cluster.move_to("a", "h2");
    cluster.move_to("b", "h2");
    assert!(is_refused(&cluster.move_group("h1", false, false)));
    let planned = plan(cluster.move_group("h1", true, false));
    assert!(planned.iter().all(|planned| planned.to.is_none()), "{planned:?}");
    assert!(cools_down("a", &planned[0].obstacles[0]) && planned[1].obstacles.is_empty(), "{planned:?}");
    assert_eq!(cluster.move_group("h2", false, false), Event::Done, "nobody has to move");
    assert_eq!(cluster.move_group("h1", false, true), Event::Done);
    assert_eq!((cluster.host_of("a").as_str(), cluster.host_of("b").as_str()), ("h1", "h1"));

    let planned = plan(cluster.drain(true));
    assert!(planned.iter().all(|planned| planned.to.is_some()), "{planned:?}");
    assert!(planned[0].cools_down_for_s.is_some() && planned[1].cools_down_for_s.is_none(), "{planned:?}");
    let Event::Drained(report) = cluster.drain(false) else { panic!("not drained") };
    assert!(report.moved == 2 && report.stayed.is_empty(), "{report:?}");
}
