import { defineConfig } from "vite";

/** Tests of what is pure, for the test runner of Node, which reads no TypeScript in all of its releases. */
export default defineConfig({
  publicDir: false,
  build: { ssr: "test/lib.test.ts", outDir: "node_modules/.tests", emptyOutDir: true, rollupOptions: { output: { entryFileNames: "[name].mjs" } } },
});
