package web

import (
	_ "embed"
	"net/http"
)

// document describes the API. Tests compare it with the types, the paths and real answers.
//
//go:embed openapi.yaml
var document []byte

// openAPI returns the document.
func openAPI(r *http.Request) (any, error) {
	_, err := known(r)
	return document, err
}

// sendYAML answers with a document, or with an error in JSON.
func (h *handler) sendYAML(w http.ResponseWriter, r *http.Request, status int, answer any) {
	text, ok := answer.([]byte)
	if !ok {
		h.send(w, r, status, answer)
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(text)
}
