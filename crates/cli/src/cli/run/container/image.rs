//! Converts an image's configuration to that of a container.

use oci_image::{Config, Source};
use serde_json::{Value, json};

use super::absolute;
use crate::WRONG_USAGE;
use crate::failure::{Failure, Result};

/// The image's configuration, and the reference that hosts need.
pub fn look(source: &Source) -> Result<(Config, api::ContainerImage)> {
    let source = match source {
        Source::Layout { directory, tag } => {
            Source::Layout { directory: absolute(directory)?.into(), tag: tag.clone() }
        }
        Source::Podman(name) => Source::Podman(name.clone()),
    };
    let (said, root) = source.look().map_err(|error| Failure::new(error.what, error.remedy))?;
    Ok((said, api::ContainerImage { source: source.to_string(), root: root.to_string() }))
}

/// `config` with the image's command, environment, directory and user. `words` replace the image's arguments if
/// there are any, and `other_user` keeps the user of `config`.
pub fn apply(mut config: Value, said: &Config, words: &[String], other_user: bool) -> Result<Value> {
    let listed = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let end = if words.is_empty() { listed(&said.cmd) } else { words.to_vec() };
    let process = &mut config["process"];
    process["args"] = listed(&said.entrypoint).into_iter().chain(end).collect();
    process["env"] = listed(&said.env).into();
    let directory = said.working_dir.as_deref().filter(|directory| !directory.is_empty());
    process["cwd"] = directory.unwrap_or("/").into();
    if !other_user {
        let (user, group) = ids(said.user.as_deref().unwrap_or_default())?;
        process["user"] = json!({ "uid": user, "gid": group });
    }
    Ok(config)
}

/// Parses `USER` or `USER:GROUP`. Names are not resolved, because the image is not unpacked here.
fn ids(user: &str) -> Result<(u32, u32)> {
    let named = || {
        let what = format!("the image's user `{user}` is a name, not a number");
        Failure::new(what, "pass the numbers from the image's /etc/passwd: `--user UID:GID`")
            .with_code(WRONG_USAGE)
    };
    let id = |text: &str| match text {
        "" | "root" => Ok(0),
        _ => text.parse::<u32>().map_err(|_| named()),
    };
    let (user, group) = user.split_once(':').unwrap_or((user, ""));
    Ok((id(user)?, id(group)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Config {
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        Config {
            user: Some("7".into()),
            env: words(&["A=b"]),
            entrypoint: words(&["/run"]),
            cmd: words(&["x", "y"]),
            working_dir: Some("/work".into()),
        }
    }

    #[test]
    fn command_replaces_the_images_arguments() {
        let process = |words: &[String]| apply(json!({}), &said(), words, false).unwrap()["process"].clone();
        let expected = json!({ "args": ["/run", "x", "y"], "env": ["A=b"], "cwd": "/work",
            "user": { "uid": 7, "gid": 0 } });
        assert_eq!(process(&[]), expected);
        assert_eq!(process(&["z".into()])["args"], json!(["/run", "z"]));
        let nothing = apply(json!({}), &Config::default(), &[], false).unwrap();
        assert_eq!(nothing["process"]["cwd"], "/");
    }

    #[test]
    fn a_user_is_a_number_or_root() {
        assert_eq!(ids("").unwrap(), (0, 0));
        assert_eq!(ids("root:5").unwrap(), (0, 5));
        assert_eq!(ids("1000").unwrap(), (1000, 0));
        assert!(ids("nobody").is_err());
        let named = Config { user: Some("nobody".into()), ..said() };
        assert!(apply(json!({}), &named, &[], true).is_ok());
    }
}
