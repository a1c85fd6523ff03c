// Answers each line {text, changes: [[path, value or null]]} with what jsonc-parser makes of it:
// the value of the text, its errors, and the value after each change made by `modify`.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";

const { applyEdits, modify, parse } = createRequire(process.argv[2])("jsonc-parser");

const read = (text) => {
  const errors = [];
  const value = parse(text, errors, { allowTrailingComma: true });
  return { value, errors: errors.length };
};

for await (const line of createInterface({ input: process.stdin })) {
  const { text, changes } = JSON.parse(line);
  const changed = changes.map(([path, value]) => {
    const edits = modify(text, path, value === null ? undefined : value, {
      formattingOptions: { insertSpaces: true, tabSize: 2 },
    });
    return read(applyEdits(text, edits));
  });
  process.stdout.write(JSON.stringify({ ...read(text), changed }) + "\n");
}
