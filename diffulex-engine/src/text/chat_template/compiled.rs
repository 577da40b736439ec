//! A template as it is run: its environment, and the instructions that keep the account ([`super::metering`]).

use std::collections::{BTreeMap, HashSet};

use minijinja::machinery::{Instructions, eval, get_compiled_template, make_string_output};
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error};
use self_cell::self_cell;

use super::metering;

/// Name of the template in its environment.
const NAME: &str = "chat";

self_cell! {
    pub(super) struct Compiled {
        owner: Environment<'static>,
        #[not_covariant]
        dependent: Parts,
    }
}

struct Parts<'a> {
    main: Instructions<'a>,
    blocks: BTreeMap<&'a str, Instructions<'a>>,
    escape: AutoEscape,
    recurses: bool,
}

impl<'a> Parts<'a> {
    fn new(environment: &'a Environment<'a>, name: &str) -> Result<Self, String> {
        let template = environment.get_template(name).map_err(|error| error.to_string())?;
        let compiled = get_compiled_template(&template);
        let mut parts = std::iter::once(&compiled.instructions).chain(compiled.blocks.values());
        let recurses = parts.any(metering::recurses);
        let blocks = compiled.blocks.iter().map(|(name, part)| Ok((*name, metering::metered(part, false)?)));
        Ok(Self {
            main: metering::metered(&compiled.instructions, true)?,
            blocks: blocks.collect::<Result<_, &str>>()?,
            escape: compiled.initial_auto_escape.clone(),
            recurses,
        })
    }
}

impl Compiled {
    /// Adds `source` to the environment and compiles it.
    pub(super) fn compile(mut environment: Environment<'static>, source: String) -> Result<Self, String> {
        environment.add_template_owned(NAME, source).map_err(|error| error.to_string())?;
        Self::try_new(environment, |environment| Parts::new(environment, NAME))
    }

    /// The variables that the template reads and does not set, which the context has to hold.
    pub(super) fn variables(&self) -> HashSet<String> {
        let template = self.borrow_owner().get_template(NAME);
        template.map(|template| template.undeclared_variables(false)).unwrap_or_default()
    }

    /// True if it needs a stack of its own to be run.
    pub(super) fn recurses(&self) -> bool {
        self.with_dependent(|_, parts| parts.recurses)
    }

    /// Writes the template to `out`. The context has the size that its values may have ([`metering::LIMIT`]).
    pub(super) fn run(&self, context: Value, out: &mut String) -> Result<(), Error> {
        self.with_dependent(|environment, parts| {
            let out = &mut make_string_output(out);
            eval(environment, &parts.main, context, &parts.blocks, out, parts.escape.clone()).map(drop)
        })
    }
}
