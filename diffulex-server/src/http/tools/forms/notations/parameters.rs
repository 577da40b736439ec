//! `<function=NAME>` with `<parameter=KEY>` for each argument: Qwen3-Coder. Texts are written as they are, other values as JSON.

use diffulex_engine::ToolCall;
use serde_json::Value;

pub(in crate::http::tools::forms) const EXAMPLE: &str =
    "<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>";

pub(in crate::http::tools::forms) fn call(call: &ToolCall) -> String {
    let parameter = |(key, value): (&String, &Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("<parameter={key}>\n{value}\n</parameter>\n")
    };
    let parameters: String = call.arguments.iter().map(parameter).collect();
    format!("<function={}>\n{parameters}</function>", call.name)
}
