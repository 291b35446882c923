package etcd

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// NoConnection is the error of a call for which there was no connection.
type NoConnection struct {
	// Cause is in the words of the network or of TLS.
	Cause string
	// Advice says which key to change, or is "" if the cause says enough.
	Advice string
	err    error
}

func (e *NoConnection) Error() string {
	if e.Advice == "" {
		return "no connection: " + e.Cause
	}
	return "no connection: " + e.Cause + ": " + e.Advice
}

// Unwrap returns the error of the call.
func (e *NoConnection) Unwrap() error { return e.err }

// noConnection returns nil if the call did not fail for that.
func (c *Client) noConnection(err error) *NoConnection {
	_, quoted, found := strings.Cut(err.Error(), "connection error: desc = ") // the text of gRPC
	if !found {
		return nil
	}
	quoted, _ = strconv.QuotedPrefix(quoted)
	cause, _ := strconv.Unquote(quoted)
	cause = strings.TrimPrefix(strings.TrimPrefix(cause, "transport: "), "Error while dialing: ")
	return &NoConnection{cause, c.advise(cause), err}
}

// advise returns the Advice for a cause. With TLS 1.3 a server refuses a client after the handshake of the client, and its
// alert may be lost: then the client only reads that the connection was closed.
func (c *Client) advise(cause string) string {
	o := c.options
	is := func(words string) bool { return strings.Contains(cause, words) }
	secure := o.TLS != TLS{} || strings.HasPrefix(o.Endpoints[0], "https:") || strings.HasPrefix(o.Endpoints[0], "unixs:")
	handshake, preface := is("handshake failed"), is("server preface")
	switch leaf := leafOf(o.TLS.CertFile); {
	case is("x509: certificate signed by unknown authority") && o.TLS.CAFile == "":
		return "set etcd.tls.ca_file to the authority of etcd's certificate: only those of the system are trusted"
	case is("x509: certificate signed by unknown authority"):
		return "etcd.tls.ca_file " + o.TLS.CAFile + " does not have the authority of etcd's certificate"
	case is("x509: certificate is valid for"), is("x509: certificate is not valid for"), is("IP SANs"):
		return "use an endpoint that etcd's certificate names, or set etcd.tls.server_name to a name in it"
	case is("x509:"), !handshake && !preface:
		return ""
	case !secure:
		return "etcd may require TLS: begin etcd.endpoints with https://, and see etcd.tls.ca_file"
	case o.TLS.CertFile == "" && (c.asked.Load() || is("certificate required")):
		return "etcd asks for a client certificate: set etcd.tls.cert_file and etcd.tls.key_file"
	case leaf != nil && time.Now().After(leaf.NotAfter):
		return fmt.Sprintf("the client certificate of etcd.tls.cert_file %s expired at %s", o.TLS.CertFile, leaf.NotAfter.Format(time.RFC3339))
	case handshake && (is("EOF") || is("connection reset") || is("does not look like a TLS handshake")):
		return "etcd may not use TLS: begin etcd.endpoints with http://, and leave etcd.tls empty"
	case leaf != nil:
		return "etcd may not trust the client certificate of etcd.tls.cert_file " + o.TLS.CertFile
	}
	return ""
}
