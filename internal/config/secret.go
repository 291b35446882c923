package config

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
)

const redacted = "<redacted>"

// Secret is a value that formatting, logging and encoding do not show; Reveal does. The zero Secret is the empty one. It hides behind a
// pointer because fmt calls no methods on unexported fields: a Config in a struct of somebody else's must not print its password either.
// So == does not compare Secrets.
type Secret struct{ value *string }

// NewSecret returns a Secret that reveals s.
func NewSecret(s string) Secret {
	if s == "" {
		return Secret{}
	}
	return Secret{&s}
}

// Reveal returns the secret itself, for the one place that sends it.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// String returns "<redacted>", or "" for the empty secret.
func (s Secret) String() string {
	if s.value == nil {
		return ""
	}
	return redacted
}

// LogValue redacts in slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText redacts in JSON, YAML and every other encoding that asks for text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// ReadPassword returns Password or, where PasswordFile is set, what that file holds now, without one line end behind it. It reads the file at each
// call, so that a rotated password is found; an empty file is an error, since etcd would take it for no authentication.
func (e Etcd) ReadPassword() (Secret, error) {
	if e.PasswordFile == "" {
		return e.Password, nil
	}
	b, err := os.ReadFile(e.PasswordFile)
	if err != nil {
		return Secret{}, fmt.Errorf("etcd.password_file: %w", err)
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if len(b) == 0 {
		return Secret{}, fmt.Errorf("etcd.password_file: %s is empty", e.PasswordFile)
	}
	return NewSecret(string(b)), nil
}
