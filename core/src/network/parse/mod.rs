//! Parsers of untrusted input: DNS, HTTP, TLS, proxy requests. Pure.

pub mod dns_message;
pub mod http_request;
pub mod http_response_head;
pub mod proxy_request;
pub mod tls_client_hello;
