package api_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/operations.md has each of the messages.
func TestLogMessagesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	file, err := parser.ParseFile(token.NewFileSet(), "log.go", nil, 0)
	require.NoError(t, err)
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.BasicLit); ok && v.Kind == token.STRING {
			text, err := strconv.Unquote(v.Value)
			require.NoError(t, err)
			require.Contains(t, string(doc), "`"+text+"`")
			found++
		}
		return true
	})
	require.Greater(t, found, 10)
}
