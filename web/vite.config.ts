import { readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

/** The files that are part of the program are compressed, but for the page itself, in which it writes the name of the build. */
function compressed(): Plugin {
  let folder = "";
  return {
    name: "compressed",
    apply: "build",
    configResolved: (config) => {
      folder = resolve(config.root, config.build.outDir);
    },
    closeBundle: () => {
      for (const name of readdirSync(folder).filter((name) => !/\.(html|gz)$/.test(name))) {
        const file = join(folder, name);
        writeFileSync(`${file}.gz`, gzipSync(readFileSync(file), { level: 9 }));
        rmSync(file);
      }
    },
  };
}

/** The worker of elkjs is shipped as it is published: it is compiled Java, which no bundler makes smaller. */
function elkWorker(): Plugin {
  return {
    name: "elk-worker",
    apply: "build",
    generateBundle() {
      const source = readFileSync(join(import.meta.dirname, "node_modules/elkjs/lib/elk-worker.min.js"));
      this.emitFile({ type: "asset", fileName: "elk-worker.js", source });
    },
  };
}

export default defineConfig({
  base: "/ui/",
  plugins: [svelte(), elkWorker(), compressed()],
  build: {
    target: "es2022",
    outDir: "dist",
    emptyOutDir: true,
    assetsDir: "",
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: false,
    chunkSizeWarningLimit: 1000,
    rollupOptions: {
      output: {
        // Names without hashes: the program lists the files, and the browser asks for them again by their tag.
        entryFileNames: "main.js",
        chunkFileNames: "[name].js",
        assetFileNames: (asset) => (asset.names.some((name) => name.endsWith(".css")) ? "main.css" : "[name][extname]"),
      },
    },
  },
});
