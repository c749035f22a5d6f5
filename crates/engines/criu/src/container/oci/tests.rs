use super::*;

/// The `process` object for the runtime, from that in `config`, for a command that runs as this user.
fn process(user: u32, config: &Value) -> Value {
    let program = Program { user, group: user, ..Program::new(["program"]) };
    let wanted = Wanted {
        name: &InstanceName::new("c").unwrap(),
        program: &program,
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
fn init_is_root_with_the_configured_umask() {
    let user = |said: Value| process(7, &json!({ "user": said }))["user"].take();
    assert_eq!(
        user(json!({ "uid": 7, "gid": 7, "umask": 0o77 })),
        json!({ "uid": 0, "gid": 0, "umask": 0o77 })
    );
    assert_eq!(user(json!({ "uid": 7, "gid": 7 })), json!({ "uid": 0, "gid": 0 }));
}

#[test]
fn the_runtime_lends_init_the_capabilities_to_change_users() {
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
    assert_eq!(with_root["args"][0], "container", "nothing is lent");
}
