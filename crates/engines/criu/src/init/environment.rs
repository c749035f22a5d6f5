//! The environments of init and of the command, which travels inside init's.

use std::env;
use std::ffi::OsString;

use sessions::launch::HOME;

/// The prefix of variables of the command that must not affect init itself, or that a runtime sets for init.
const SHIELD: &str = "TRANSHUME_COMMAND_";

/// The environment for init, from which it makes `environment` for the command. Variables that tell the dynamic linker to load the
/// drop-in library are for the command alone.
pub fn shield(environment: &[(String, String)]) -> impl Iterator<Item = (String, String)> + '_ {
    environment.iter().map(|(name, value)| {
        let shields = name.starts_with("LD_") || name == HOME;
        let name = if shields { format!("{SHIELD}{name}") } else { name.clone() };
        (name, value.clone())
    })
}

/// The environment of the command, from init's own.
pub fn unshielded() -> impl Iterator<Item = (OsString, OsString)> {
    env::vars_os().filter_map(|(name, value)| Some((commands_name(name)?, value)))
}

/// The command's name of the variable that init calls `name`; `None` if it is init's own.
fn commands_name(name: OsString) -> Option<OsString> {
    match name.to_str().and_then(|name| name.strip_prefix(SHIELD)) {
        Some(plain) => Some(plain.into()),
        None => (name != HOME).then_some(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_linker_and_the_runtime_do_not_affect_init() {
        let environment = ["LD_PRELOAD", "HOME", "HOMES"].map(|name| (name.to_owned(), "x".to_owned()));
        let names: Vec<String> = shield(&environment).map(|(name, _)| name).collect();
        assert_eq!(names, ["TRANSHUME_COMMAND_LD_PRELOAD", "TRANSHUME_COMMAND_HOME", "HOMES"]);
        let of_command = names.into_iter().chain(["HOME".to_owned()]).map(|name| commands_name(name.into()));
        let [preload, home, homes] = ["LD_PRELOAD", "HOME", "HOMES"].map(|name| Some(OsString::from(name)));
        assert_eq!(of_command.collect::<Vec<_>>(), [preload, home, homes, None]);
    }
}
