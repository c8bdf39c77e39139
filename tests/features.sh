# To be sourced: the features with which the scripts build the debug programs, FEATURES. Cargo unifies features over the selected packages
# and kinds of targets. `cargo test` has those of the dev-dependencies, which are tokio's; without them tokio and the 20 crates that depend
# on it, Pingora, hyper and redis among them, would be built a second time.
FEATURES=balancer,tokio/full,tokio/test-util
