use std::net::Ipv4Addr;

use fabric::NetworkKind;

use super::*;
use crate::instance::{InstanceName, Network};

fn refusal(config: &Value) -> String {
    Config::parse(&config.to_string()).unwrap_err().what
}

fn mounted(mount: &Value) -> Value {
    json!({ "mounts": [mount] })
}

/// The part of `process` in `config` that the runtime gets, for a command that runs as this user.
fn process(user: u32, config: &Value) -> Value {
    let network = Network { mac: [2; 6], address: Ipv4Addr::new(10, 0, 0, 2), prefix: 24, mtu: 1500 };
    let spec = InstanceSpec {
        name: InstanceName::new("c").unwrap(),
        command: vec!["program".into()],
        environment: Vec::new(),
        directory: "/".into(),
        user,
        group: user,
        groups: Vec::new(),
        limits: Vec::new(),
        network,
        container: None,
        network_kind: NetworkKind::Bridge,
        image: None,
        stdin: false,
    };
    let wanted = Wanted {
        spec: &spec,
        config: Config::parse(&json!({ "process": config }).to_string()).unwrap(),
        root: Path::new("/root"),
        network: Path::new("/network"),
        cgroup: "/c",
        descriptors: ResourceLimit { resource: libc::RLIMIT_NOFILE, soft: 9, hard: 9 },
        init: Vec::new(),
        beside: Vec::new(),
    };
    wanted.configuration()["process"].take()
}

#[test]
fn init_is_root_with_the_umask_that_is_wanted() {
    let user = |said: Value| process(7, &json!({ "user": said }))["user"].take();
    assert_eq!(
        user(json!({ "uid": 7, "gid": 7, "umask": 0o77 })),
        json!({ "uid": 0, "gid": 0, "umask": 0o77 })
    );
    assert_eq!(user(json!({ "uid": 7, "gid": 7 })), json!({ "uid": 0, "gid": 0 }));
}

#[test]
fn what_does_not_move_is_refused_by_its_name() {
    let user = json!({ "linux": { "namespaces": [{ "type": "pid" }, { "type": "user" }] } });
    assert!(refusal(&user).contains("user namespace"));
    let hooks = json!({ "hooks": { "prestart": [{ "path": "/bin/true" }] } });
    assert!(refusal(&hooks).contains("hooks"));
    let nfs = mounted(&json!({ "type": "nfs", "source": "a:/b", "destination": "/data" }));
    assert!(refusal(&nfs).contains("of type nfs"));
    for destination in ["data", "/a/../b", "/", ""] {
        let bind = json!({ "type": "bind", "source": "/srv", "destination": destination });
        assert!(refusal(&mounted(&bind)).contains("not a valid mount point"), "{destination}");
    }
    for destination in ["/proc", "/dev/"] {
        let bind = json!({ "type": "bind", "source": "/srv", "destination": destination });
        assert!(refusal(&mounted(&bind)).contains("is reserved for a kernel file system"), "{destination}");
    }
    let ours = json!({ "type": "bind", "source": "/srv", "destination": "/.transhume/lib" });
    assert!(refusal(&mounted(&ours)).contains("is reserved in each container"));
    assert!(Config::parse("[]").is_err() && Config::parse("{").is_err());
    assert!(Config::parse(&" ".repeat(MAX_CONFIG + 1)).unwrap_err().what.contains("longer than 256 KiB"));
}

#[test]
fn what_a_later_mount_would_hide_is_refused() {
    let bind = |source: &str, destination: &str| json!({ "type": "bind", "source": source, "destination": destination });
    let memory = json!({ "type": "tmpfs", "source": "tmpfs", "destination": "/a" });
    let both = |one: &Value, other: &Value| json!({ "mounts": [one, other] });
    let (outer, inner) = (bind("/x/va", "/a/"), bind("/x/vb", "/a/b"));
    for over in [&outer, &inner, &memory] {
        let hidden = validate(&both(&inner, over).to_string()).unwrap_err().what;
        assert!(hidden.contains("/x/vb at /a/b in the container would be hidden by the later"), "{hidden}");
    }
    for (one, other) in [(&outer, &inner), (&memory, &inner), (&inner, &bind("/x/vc", "/a/bc"))] {
        assert_eq!(validate(&both(one, other).to_string()), Ok(()), "{one} {other}");
    }
    // None is mounted of the host's.
    let cgroup = json!({ "type": "cgroup", "source": "cgroup", "destination": "/a" });
    assert_eq!(validate(&both(&inner, &cgroup).to_string()), Ok(()));
}

#[test]
fn init_is_lent_what_it_needs_to_be_another_user() {
    let few = json!(["CAP_CHOWN", "CAP_SETUID"]);
    let config = json!({ "capabilities": { "bounding": few, "effective": [], "ambient": few } });
    let mut with_user = process(7, &config);
    assert_eq!(with_user["args"][0], "lent=5,6,8");
    let needed = ["CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"];
    let expected = json!({
        "bounding": ["CAP_CHOWN", "CAP_SETUID", "CAP_KILL", "CAP_SETGID", "CAP_SETPCAP"],
        "effective": needed, "permitted": needed, "ambient": few,
    });
    assert_eq!(with_user["capabilities"].take(), expected);
    let mut with_root = process(0, &config);
    assert_eq!(with_root["capabilities"].take(), config["capabilities"]);
    assert_eq!(with_root["args"][0], "0");
}

#[test]
fn limits_need_their_controllers() {
    let resources = json!({ "devices": [], "memory": { "limit": 1 }, "pids": null, "cpu": { "quota": 1 } });
    let config = json!({ "linux": { "resources": resources } }).to_string();
    assert_eq!(Config::parse(&config).unwrap().controllers(), ["memory", "cpu"]);
    assert_eq!(Config::parse("{}").unwrap().controllers(), [""; 0]);
}

#[test]
fn pseudo_terminals_are_no_more_than_can_be_restored() {
    let options = |said: Value| {
        let mount =
            json!({ "type": "devpts", "source": "devpts", "destination": "/dev/pts", "options": said });
        let config = Config::parse(&mounted(&mount).to_string()).unwrap();
        config.all["mounts"][0]["options"].clone()
    };
    assert_eq!(options(json!(["gid=5"])), json!(["gid=5", "max=32"]));
    assert_eq!(options(json!(["max=4"])), json!(["max=4"]));
    assert_eq!(options(json!(["max=99"])), json!(["max=99", "max=32"]));
    assert_eq!(options(json!("none")), json!("none"));
    let none = json!({ "type": "devpts", "destination": "/dev/pts" });
    let config = Config::parse(&mounted(&none).to_string()).unwrap();
    assert_eq!(config.all["mounts"][0]["options"], json!(["max=32"]));
}

#[test]
fn binds_are_told_from_what_is_made_anew() {
    let config = json!({ "mounts": [
        { "type": "tmpfs", "source": "tmpfs", "destination": "/tmp" },
        { "type": "cgroup", "source": "cgroup", "destination": "/sys/fs/cgroup" },
        { "type": "none", "source": "/srv/a", "destination": "/a/", "options": ["rbind"] },
        { "source": "/srv/b", "destination": "/b" },
    ] });
    let config = Config::parse(&config.to_string()).unwrap();
    let binds = [("/srv/a", "/a"), ("/srv/b", "/b")];
    let binds =
        binds.map(|(source, destination)| Bind { source: source.into(), destination: destination.into() });
    assert_eq!(config.binds(), binds);
    assert_eq!(config.all["mounts"].as_array().unwrap().len(), 3);
}
